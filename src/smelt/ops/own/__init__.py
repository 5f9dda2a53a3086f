"""Operators of our own: the steps of recurrent layers (`rnn.*`), linear layers over few bits (`narrow.*`)."""
