"""Unit tests of rules, in the format of `promtool test rules`."""
