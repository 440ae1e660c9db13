"""What all tests share."""

from hypothesis import settings

# Time is no property of the code here: workers side by side make anything slow now and then.
settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")
