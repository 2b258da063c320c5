"""An update that was captured: what the attacker makes of it, what is certain, and how it compares with others."""
