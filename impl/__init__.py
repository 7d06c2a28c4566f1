"""The live implementation: the model's worker machine on real etcd, under the module and class names of upstream's.

Replace the prefix ``torch.distributed.elastic.rendezvous`` by ``rallypoint.impl``: ``etcd_rendezvous``,
``etcd_rendezvous_backend``, ``etcd_store``, ``etcd_server``. Below them: ``etcd_http`` (one attempt at one request),
``etcd_sure`` (attempts until there is an answer, each write once), ``etcd_kv`` (a store's key space), ``etcd_v2`` (the
model's requests), ``reaper`` and ``etcd_process`` (programs that do not outlive us).
"""
