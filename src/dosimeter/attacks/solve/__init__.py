"""Solving for the image instead of searching for it.

first_layer   the layer that sees the image first      ratio    a fully connected one, solved on its own
straight      a network read as layers in a row        layers   solved from the last layer to the first
system        the linear equations of one layer        fill     what an image is where they leave it open
certificate   whether an image explains the update     analytic   the attacks that choose among these
latent        a network with noise drawn inside it     eliminate   solved from the last layer to the first
encoder       the equations of what is drawn           features   the input of a later layer, and the image behind it
unlock        a lock that stays with the client        patches   an embedding of patches with learned positions
wide          a convolution with a channel a place     below     the layers below one that is solved
deep          the image behind both, in deep networks
"""
