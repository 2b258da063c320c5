"""A search put together from parts, one file each.

likelihoods  how well a simulated update explains the observed one      degraded     the same after what a defense did
priors       what images look like before any update is seen            starts       where the search begins
optimisers   how it moves (lbfgs, cmaes)                                schedules    how its step size shrinks
moves        what is done to candidates after a step                    sampling     points around a candidate
masks        which tensors are matched                                  spaces       where images are looked for
treatments   what is supposed of numbers that clients draw inside the model
objective    what is minimised                                          stopping     when a candidate is done
search       all of it together                                         running      the loop itself
together     several settings in one batch                              states       what it holds of its candidates
"""

from dosimeter.attacks.search import likelihoods, masks, optimisers, priors, schedules, starts

__all__ = ["likelihoods", "masks", "optimisers", "priors", "schedules", "starts"]
