"""Generated protobuf code, and the conversion between it and the records of `perfd.model`."""
