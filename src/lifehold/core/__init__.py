"""The algorithms and values of lifehold.

Imports no clock, no os, no loop, no network, no logging.
"""
