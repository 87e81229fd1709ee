"""Folders of earlier releases, which this one opens; and how a release is made."""
