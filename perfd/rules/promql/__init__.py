"""The subset of PromQL that the embedded engine evaluates; docs/rules.md defines it."""
