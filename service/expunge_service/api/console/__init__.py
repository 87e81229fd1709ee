"""The status page: server-rendered, readable without JavaScript, live with it."""
