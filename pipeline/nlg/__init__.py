"""The wording of replies: actions done, refusals, answers to questions."""
