-- Where the requests of an action in doubt went, and as whom: a keyed digest, of which only equality says something. Written
-- by the claim; kept while the action is in doubt. NULL: claimed by a version that did not write it.
ALTER TABLE counterfoil.action ADD COLUMN reach text CHECK (length(reach) <= 64);
GRANT UPDATE (reach) ON counterfoil.action TO counterfoil_worker;
