"""Programs beside Expunge that speak with other systems. They reach the service by its public API alone."""
