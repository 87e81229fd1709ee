"""Callbacks that record the steps of another library's training loop, each in a module that imports that library."""
