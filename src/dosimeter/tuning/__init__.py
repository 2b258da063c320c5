"""Attacks compare only when each is tuned: settings tried on images of the attacker's own, never on victims.

spaces    what is tuned, by name or in words        setting   a tuning as one value
ground    shadows, attacked by many settings at once
journal   Optuna's study in a folder                work      what one process does of it
tune      all of it                                 presets   what came of it, as a file that `tuned:NAME` names
"""
