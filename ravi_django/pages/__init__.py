"""Shared by the pages on which people decide: texts, the form, the context. The admin's inbox and the page of an
e-mail's link show the same and accept the same."""
