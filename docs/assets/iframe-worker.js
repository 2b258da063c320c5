// Browsers start no workers for pages that are opened from the disk; there a hidden frame runs the search instead.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super()
      this.frame = document.createElement("iframe")
      this.frame.hidden = true
      this.frame.src = "about:blank"
      this.waiting = []
      const begin = () => {
        this.inside = this.frame.contentWindow
        this.inside.postMessage = data => {
          const event = new MessageEvent("message", { data })
          this.dispatchEvent(event)
          if (this.onmessage) this.onmessage(event)
        }
        this.inside.importScripts = (...urls) =>
          urls.reduce((done, each) => done.then(() => this.load(each)), Promise.resolve())
        this.load(url).then(() => {
          this.ready = true
          this.waiting.splice(0).forEach(data => this.postMessage(data))
        })
      }
      const attach = () => { document.body.append(this.frame); begin() }
      if (document.body) attach()
      else document.addEventListener("DOMContentLoaded", attach)
    }
    load(url) {
      return new Promise((resolve, reject) => {
        const script = this.inside.document.createElement("script")
        script.src = new URL(url, location.href)
        script.onload = resolve
        script.onerror = reject
        this.inside.document.body.append(script)
      })
    }
    postMessage(data) {
      if (this.ready) this.inside.dispatchEvent(new MessageEvent("message", { data }))
      else this.waiting.push(data)
    }
    terminate() { this.frame.remove() }
  }
}
