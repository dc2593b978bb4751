"""The checks, by what goes wrong. Their words and examples stand in catalogue/."""
