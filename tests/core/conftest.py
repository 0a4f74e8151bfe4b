"""Hypothesis without a stopwatch: on a busy machine a slow example is no finding."""

from hypothesis import settings

settings.register_profile("unhurried", deadline=None)
settings.load_profile("unhurried")
