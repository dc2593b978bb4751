"""Tools to test locks with, ours and yours: children to be crashed, the explorer, the conformance suite."""
