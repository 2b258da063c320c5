"""An explorer of a store of trials, in the browser (Dash, the extra `app`).

trials     what is asked of a store, by SQL: only what is shown is read
places     paths, all of them inside the store
jobs       audits that were started from the form, one after another, each a process that ends with the app
guard      who may ask: this machine, or who has the token
page       what the page is made of     parts   pieces of it     figures   accuracy against privacy
explorer   what happens on it
serve      the server: pages, pictures, the page of a trial

Nothing here waits for torch; what needs it, a trial's page and the check of a form, imports it then.
"""
