"""Attacks around another: what an attacker does who was not told all, or who saw more than one update.

guess      the number of local steps, or their rate      orders   the order of a client's images
rounds     several updates of one batch                  leave_out   which tensor was tampered with
key        the key of a lock whose gradient was sent     trials   what guesses and left-out tensors have in common
undo       what a defense did to images                  likeliest   which of the things that it may have done
"""
