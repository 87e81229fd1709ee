"""Give published versions to other systems: a bill of materials, a signature, a model registry."""
