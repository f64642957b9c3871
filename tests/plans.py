"""Short ways to make batch plans from tensors of classes, groups, labels, queries or bags."""
# ruff: noqa: N802

from fcco_lightning.data import (
    BagSampling,
    BalancedSampling,
    EventSampling,
    GroupSampling,
    LabelSampling,
    QuerySampling,
)


def BalancedBatches(labels, batch_size, seed=0, **options):
    return BalancedSampling(batch_size, **options).plan({"y": labels.long()}, seed)


def EventBatches(events, events_per_batch, censored_per_batch, seed=0, **options):
    return EventSampling(events_per_batch, censored_per_batch, **options).plan({"event": events}, seed)


def GroupBatches(groups, groups_per_batch, samples_per_group, seed=0, **options):
    return GroupSampling(groups_per_batch, samples_per_group, **options).plan({"group": groups}, seed)


def LabelBatches(task, y, labels_per_batch, positives_per_label, negatives_per_label, seed=0, **options):
    sampling = LabelSampling(labels_per_batch, positives_per_label, negatives_per_label, **options)
    return sampling.plan({"task": task, "y": y.long()}, seed)


def QueryBatches(queries, relevant, queries_per_batch, positives_per_query, negatives_per_query, seed=0, **options):
    sampling = QuerySampling(queries_per_batch, positives_per_query, negatives_per_query, **options)
    return sampling.plan({"query": queries, "y": relevant.long()}, seed)


def BagBatches(bags, labels, positive_bags, negative_bags, instances_per_bag, seed=0, **options):
    sampling = BagSampling(positive_bags, negative_bags, instances_per_bag, **options)
    return sampling.plan({"bag": bags, "y": labels.long()}, seed)
