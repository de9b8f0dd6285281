"""The pages of docs/, the tables in them, and the site that is made of them."""
