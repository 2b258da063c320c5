"""Programs that users could write, for better or worse."""
