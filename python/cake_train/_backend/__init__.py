"""What the facades run on. A module here is imported at the first call or class access of its facade, never before;
none imports a facade."""
