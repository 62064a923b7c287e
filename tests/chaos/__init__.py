"""Chaos: a training run that is tormented for minutes, and whose batches are those of a quiet one.

A *trainer* (a child process) goes through epochs of a loader and notes each batch. The *tormentor*
(its parent) kills, crashes and stops its workers, and kills the trainer itself, which then goes on
from its last checkpoint under other circumstances: another number of workers, another transport.
``make chaos`` runs *campaigns*, one of each kind of data in turn, until there were enough faults.

    datasets.py    what is loaded                 kinds.py      the loaders
    trainer.py     the child                      journal.py    what it writes
    lives.py       circumstances of a trainer     faults.py     what is done to it
    campaign.py    one run, from quiet to verdict
    scenes.py, rivals.py   single faults, against torch's loader and torchdata's
    processes.py   children, and children's children
    tally.py       what has happened, counted

Everything that is chosen (kinds, circumstances, faults, victims, delays) derives from the seed that
is printed. When exactly a fault hits depends on the system's scheduler, which nobody can seed: a
failure is replayed by running its campaign again, a few times if need be.
"""
