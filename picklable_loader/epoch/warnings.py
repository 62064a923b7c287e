"""Warnings about the effects of a pass, each with advice on what to do."""

from __future__ import annotations

from typing import Any

from ..datasets.protocol import is_hugging_face
from ..errors import EmptyEpochWarning, ReplayWarning, SkippedWarning, warn
from ..fetching.engine.stats import SkippedSample


def empty_epoch(epoch: int) -> None:
    """The state was taken after an epoch's last batch, and before StopIteration."""
    warn(
        f"the state was taken after the last batch of epoch {epoch}: this pass delivers nothing. "
        'Pass at_epoch_end="next" to load_state_dict or DataLoader to go straight on with epoch '
        f"{epoch + 1}.",
        EmptyEpochWarning,
    )


def replay(count: int, epoch: int, dataset: Any) -> None:
    """Batches of iterable-style data have to be fetched again."""
    advice = (
        "It goes on at once without a shuffle of its own, and if no batched function draws numbers"
        if is_hugging_face(dataset)
        else "Give the dataset, or its iterator, state_dict and load_state_dict, and it goes on at "
        "once"
    )
    warn(
        f"the dataset {type(dataset).__qualname__} has no state, and is resumed by replay: {count} "
        f"batches of epoch {epoch} are fetched again and dropped. {advice}",
        ReplayWarning,
    )


def large_list(path: str, entries: int) -> None:
    """Forked workers read a large list, and so copy its memory bit by bit."""
    warn(
        f"{path} has {entries:,} Python objects. A worker that reads one copies its memory, so "
        "each worker may grow to the size of all. Make it a picklable_loader.PackedList, an array, "
        "or a tensor, which workers share",
    )


def replay_to_come(dataset: str) -> None:
    """A state cannot have what is in the buffer of a shuffled dataset."""
    warn(
        f"the state of the dataset {dataset} lacks the samples in the buffer of its shuffle: a "
        "resume reads the epoch again from its beginning. Shuffle by "
        "picklable_loader.ShuffleBuffer around the dataset, and it goes on at once",
        ReplayWarning,
    )


def replay_between_draws(dataset: str) -> None:
    """A replay reads in one go what was read between other draws from the same generators."""
    warn(
        f'the dataset {dataset} is resumed by replay. With seeding="worker" and num_workers=0, '
        "other passes of the loader draw from its generators, and without seed= the program does. "
        "The resume is exact if nothing was drawn between two batches, or if the dataset reads no "
        'sample ahead of its batch. Use seeding="batch"',
        ReplayWarning,
    )


def buffer_lost(dataset: str) -> None:
    """A checkpoint of torchdata has not what was in the buffer of a shuffled dataset."""
    warn(
        f"this checkpoint of the dataset {dataset} lacks the samples in the buffer of its shuffle: "
        "they do not come in this epoch any more, as with torchdata itself. If they matter, begin "
        "the epoch again. Shuffle by picklable_loader.ShuffleBuffer from then on",
    )


def delegated_state(name: str) -> None:
    """A wrapper's ``__getattr__`` finds the state of what it wraps."""
    warn(
        f"{name} has state_dict and load_state_dict only by its __getattr__, from what it wraps. "
        f"That state lacks what {name} itself holds, so the loader does not use it, and treats "
        f"{name} as one without a state. Define both methods on the class {name}",
    )


def hidden_state(path: str, inner: str, outer: str) -> None:
    """A map-style dataset without a state reads one that has a state."""
    warn(
        f"this save does not hold the state of {path} ({inner}), as {outer} around it has no "
        "state_dict. If samples depend on it, a resume gives other ones, and with workers each run "
        f"may. Give {outer} state_dict and load_state_dict, by a subclass if it is torch's",
    )


def unsaved_in_data(found: str) -> None:
    """A dataset or a collate_fn has generators of its own, which a save leaves out."""
    warn(
        f"this save does not hold the state of {found}. If samples are drawn from it, a resume "
        "gives other ones, and with workers each run may. Make a generator for each sample, from "
        "picklable_loader.current_seed() and the index, pass seed_dataset= or seed_hooks= to the "
        "DataLoader, which seed it before each batch, or give the dataset state_dict and "
        "load_state_dict",
    )


def unsaved_in_stream(dataset: str, found: list[str]) -> None:
    """A stream's state is its position only, and the stream draws from generators of its own."""
    warn(
        f"the state_dict of {dataset}, or of its iterator, lacks random generators that they own "
        f"and draw from: {', '.join(found)}. After a resume these may draw other numbers. Save "
        "their states in state_dict as well, or draw from picklable_loader.current_seed(). If a "
        "resume makes them anew, or reads again from the start, ignore this"
    )


def drawn_otherwise(dataset: str) -> None:
    """A state of torchdata has a generator that datasets here do not go on with."""
    warn(
        f"the dataset {dataset} has saved the state of a random generator, and has none of its "
        "own: it is the global one, it seems, as torch.get_rng_state() gives it. This loader "
        "seeds the global generators by itself, so the batches have other random numbers than "
        "torchdata's. If they matter, finish the epoch with torchdata. Then remove that state "
        "from state_dict, as this loader does not need it",
    )


def unseeded_in_data(found: str) -> None:
    """Workers draw from generators that the loader can neither seed nor save."""
    warn(
        f"the loader cannot seed {found}: if samples are drawn from it, each run gives other ones, "
        "and so does a resume. Seed it yourself, from picklable_loader.current_seed() or by "
        'seed_dataset=, a callable; or pass seed_dataset="off" and nothing is looked for',
    )


def made_late(paths: tuple[str, ...]) -> None:
    """People's code makes generators when it is first called, which is too late to seed them."""
    warn(
        f"the first batch of a process has made loader.{', loader.'.join(paths)}, and the loader "
        "seeds it from the second batch on. If samples are drawn from it, the first batch of each "
        "process may have other random numbers after a resume, or in another run. Make it in "
        "__init__, or one for each sample, from picklable_loader.current_seed() and the index"
    )


def seeded_at_once(dataset: str) -> None:
    """``seeding="sample"``, and a dataset makes whole batches."""
    warn(
        f'seeding="sample" cannot seed each sample within __getitems__ of {dataset}, which makes a '
        "whole batch: random numbers that it draws depend on the batch size and on the number of "
        "ranks. Set __getitems__ = None on the class, and the loader fetches the samples one by "
        "one. If it draws none, ignore this",
    )


def unsaved_in_sampler(found: str) -> None:
    """A sampler draws from a generator that is no attribute of its own."""
    warn(
        f"this state does not hold that of {found}. If the order is drawn from it, a resume in a "
        "program that is built anew gives another order. Keep the generator itself in an "
        "attribute of the sampler, or give the sampler state_dict and load_state_dict",
    )


def moved_in_sampler(found: str) -> None:
    """A state was loaded for a sampler whose own generator earlier passes have moved."""
    warn(
        f"no state holds that of {found}, and earlier passes of this loader have moved it. If the "
        "order is drawn from it, the loader gives another order than it gave before. Load the "
        "state into a new loader with a new sampler; or keep the generator itself in an attribute "
        "of the sampler, or give the sampler state_dict and load_state_dict",
    )


def read_by_another_pass(dataset: str) -> None:
    """Without workers two passes of a loader read one dataset, which changes itself."""
    warn(
        f"a later pass of this loader has read the dataset {dataset}, which changes itself, in the "
        "same process: this state does not hold these changes, and its resume gives other samples "
        "if they depend on them. Read the other pass from a loader with a dataset of its own, or "
        "use workers or num_streams=, which read copies"
    )


def set_in_the_pass(names: list[str]) -> None:
    """Attributes that the program has set since the pass began, which goes on with the old ones."""
    warn(
        f"{', '.join(names)} of the loader was set in mid-epoch: this pass goes on with the old "
        "value, and its pickle with the new one. Set it between two passes, or save state_dict() "
        "and build the loader with the old value to finish this epoch",
    )


def loaded_in_the_pass(epoch: int) -> None:
    """The loader was given a state, and an iterator of before goes on as if it was not."""
    warn(
        f"loader.load_state_dict() was called in the middle of this pass over epoch {epoch}, which "
        "does not go on from that state: only the next iter(loader) does, and loader.state_dict() "
        "gives that state until then. Load before iter(loader); leave this loop and call "
        "iter(loader) again; or call load_state_dict of the iterator, which goes on from it at once"
    )


def changed_beside_workers(names: list[str]) -> None:
    """The program has changed its dataset, and the copies in persistent workers are as before."""
    warn(
        f"{', '.join(names[:4])}{', ...' if names[4:] else ''} has changed since the persistent "
        "workers were started: they go on with the earlier value, and the new workers of a resume "
        "would have this one. Give the dataset set_epoch(), which loader.set_epoch() calls in the "
        "workers as well; or build a new loader where you change the dataset",
    )


def set_in_the_sampler(sampler: str, names: list[str]) -> None:
    """Attributes of a sampler that are other ones than when the epoch was drawn."""
    warn(
        f"{', '.join(sorted(names))} of the {sampler} has changed in mid-epoch: this epoch is "
        "drawn from the old value, and its resume would draw it from the new one. Change it "
        "between two epochs, or write a sampler with state_dict and load_state_dict",
    )


def forgotten(dataset: str, before: int, now: int) -> None:
    """Streams that live on from epoch to epoch are now others."""
    warn(
        f"the dataset {dataset} was read through {before} streams, and is now read through {now}: "
        "what each one had saved in itself in earlier epochs is lost, and the epoch begins with "
        "fresh copies. Pass num_streams= to have as many streams under any number of workers",
    )


def skipped(sample: SkippedSample) -> None:
    """The first bad sample of an epoch."""
    warn(
        f"skipped, as on_error says: {sample}. This warning comes once an epoch; stats() of the "
        "iterator counts all that are skipped",
        SkippedWarning,
    )


def longer_than_promised(dataset: object, promised: int, fetched: int, workers: int) -> None:
    """An iterable-style dataset gives more than its ``len`` has said, as in torch."""
    text = (
        f"Length of IterableDataset {dataset} was reported to be {promised}"
        f"(when accessing len(dataloader)), but {fetched} samples have been fetched. "
    )
    if workers > 0:
        text += (
            "With several workers this may come from every worker reading the whole dataset: "
            "shard it by torch.utils.data.get_worker_info(), as "
            "https://pytorch.org/docs/stable/data.html#torch.utils.data.IterableDataset shows."
        )
    warn(text, UserWarning)


def other_lengths(dataset: str, wrong: list[int]) -> None:
    """Streams have another length than the dataset says, on which all ranks have counted."""
    streams = ", ".join(map(str, wrong[:8])) + (", ..." if len(wrong) > 8 else "")
    warn(
        f"of the dataset {dataset}, stream {streams} has more or fewer batches than its length "
        "says. All ranks have as many batches as the lengths say: of a longer stream the rest is "
        "not read, and for a shorter one this rank has read streams again. len(dataset) is the "
        "samples of all streams together, in even shares; stream_length gives those of one",
    )


def dropped_state(epoch: int, loaded: int) -> None:
    """``set_epoch`` went back behind a loaded state."""
    warn(f"set_epoch({epoch}) drops the loaded state of epoch {loaded}")


def rebuilt_by_accelerate() -> None:
    """Accelerate builds a loader of torch's from one of ours."""
    warn(
        "Accelerate's prepare and skip_first_batches make a loader of torch's of this one, without "
        "seed=, state_dict and all else that torch's does not have. Use prepare(accelerator, "
        "loader) of picklable_loader.integrations.accelerate; in a transformers.Trainer, "
        "self.prepare_loader(loader) of picklable_loader.integrations.huggingface.ExactResume",
    )


def rebuilt_by_ray() -> None:
    """Ray Train builds a loader of torch's from one of ours."""
    warn(
        "ray.train.torch.prepare_data_loader makes a loader of torch's of this one, without seed=, "
        'state_dict and all else that torch\'s does not have. Use DataLoader(..., shard="auto") '
        "alone, and move each batch to the device",
    )


def saved_by_dcp() -> None:
    """DCP saves a loader, or an iterator, as it is."""
    warn(
        "DCP has saved this loader itself, and cannot load that: a state has other keys at other "
        'times. Use dcp.save({"loader": LoaderState(loader)}), with LoaderState of '
        "picklable_loader.integrations.dcp. The checkpoint at hand can be rescued: see "
        "dcp_to_torch_save in docs/distributed.md",
    )
