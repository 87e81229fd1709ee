"""OpenDSR 2.0: another system's requests for erasure are deletion requests, and are answered in its own words."""
