"""What of a model leaks by its structure, found without data and without attacking anybody.

findings  what was found, and the command that shows it
subject   a model as clients run it, and what becomes of its updates
images    images and features that are solved for in closed form
beside    labels, draws, keys and statistics
layers    what every layer's gradient determines at most
lint      all of it
"""
