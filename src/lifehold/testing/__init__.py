"""Tools to test locks with, ours and yours.

Children to be crashed, the explorer, the conformance suite.
"""
