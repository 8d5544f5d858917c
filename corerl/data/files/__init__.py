"""A user's own file becomes a `corerl.data.dataset.Dataset`."""
