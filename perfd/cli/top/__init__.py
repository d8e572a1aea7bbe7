"""The screens of `perfd top`."""
