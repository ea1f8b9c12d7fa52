"""What the pages that people decide on have in common: words, the form, what is behind it. The admin's inbox and the
page behind an e-mail's link show the same and take the same."""
