-- Whether calls that say they can be repeated are, when their server ends in the middle. Its twin is ../postgres; a test compares the two.

ALTER TABLE kb.projects ADD COLUMN repeat_safe_calls BOOLEAN NOT NULL DEFAULT FALSE;
