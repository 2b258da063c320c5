"""Every attack made for a defense: what becomes of updates (channels), what answers it (contenders), running it."""
