"""``weir doctor``: what a bug report needs, without secrets and without prompts."""
