"""Fakes and contract checks, for the tests of perfd and for authors of collectors."""
