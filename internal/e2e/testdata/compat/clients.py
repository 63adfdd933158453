"""One round trip of confluent-kafka, which is librdkafka: admin, idempotent and transactional producers, both group protocols.

The environment names the gateway, the users and what is to be made. The first line of standard output is the version.
"""

import os
import time

import confluent_kafka as ck
from confluent_kafka.admin import (AclBinding, AclBindingFilter, AclOperation, AclPermissionType, AdminClient, ConfigResource, NewTopic,
                                   OffsetSpec, ResourcePatternType, ResourceType)

TOPIC, GROUP, COUNT = os.environ["TOPIC"], os.environ["GROUP"], int(os.environ["COUNT"])


def conf(user, **more):
    base = {
        "bootstrap.servers": os.environ["BOOTSTRAP"], "security.protocol": "SASL_SSL", "ssl.ca.location": os.environ["CA"],
        "sasl.mechanism": "SCRAM-SHA-512", "sasl.username": os.environ[user], "sasl.password": os.environ[user + "_PASSWORD"],
    }
    return base | {k.replace("_", "."): v for k, v in more.items()}


def result(futures):
    return {k: f.result(30) for k, f in futures.items()}


def eventually(holds):
    """Brokers know a change a moment later."""
    end = time.time() + 30
    while not holds():
        assert time.time() < end, "still not so after 30 s"
        time.sleep(0.1)


def placed(adm):
    """Brokers that know no cordons (4.1 and before) may place a new partition on kmirror, which moves it to a broker at once."""
    partitions = adm.list_topics(TOPIC, timeout=30).topics[TOPIC].partitions.values()
    return len(partitions) == 4 and all(0 < n < 9000 for p in partitions for n in [p.leader, *p.replicas])


def administer(adm):
    result(adm.create_topics([NewTopic(TOPIC, num_partitions=3, replication_factor=2), NewTopic(TOPIC + "-tx", 1, 2)]))
    brokers = adm.list_topics(timeout=30).brokers
    assert len(brokers) == 5, brokers
    for b in brokers.values():
        assert b.host == os.environ["BOOTSTRAP"].rsplit(":", 1)[0], f"told of {b.host}:{b.port}"
    result(adm.create_partitions([ck.admin.NewPartitions(TOPIC, 4)]))
    eventually(lambda: placed(adm))
    described = result(adm.describe_configs([ConfigResource(ConfigResource.Type.TOPIC, TOPIC)]))
    assert all("retention.ms" in c for c in described.values())
    acl = AclBinding(ResourceType.TOPIC, TOPIC, ResourcePatternType.LITERAL, "User:python", "*", AclOperation.READ, AclPermissionType.ALLOW)
    result(adm.create_acls([acl]))
    found = AclBindingFilter(ResourceType.TOPIC, TOPIC, ResourcePatternType.LITERAL, None, None, AclOperation.ANY, AclPermissionType.ANY)
    eventually(lambda: len(adm.describe_acls(found).result(30)) == 1)
    assert len(result(adm.delete_acls([found]))[found]) == 1


def produce():
    sent = {}

    def told(err, msg):
        if err:
            raise ck.KafkaException(err)
        sent[(msg.partition(), msg.offset())] = (msg.key(), msg.value())

    p = ck.Producer(conf("APP", enable_idempotence=True, compression_type="zstd"))
    for i in range(COUNT):
        p.produce(TOPIC, key=f"k{i}", value=f"v{i}", headers={"n": str(i)}, on_delivery=told)
    assert p.flush(60) == 0
    assert len(sent) == COUNT
    return sent


def consume(topic, n, group, **more):
    c = ck.Consumer(conf("APP", group_id=group, auto_offset_reset="earliest", enable_auto_commit=False, **more))
    c.subscribe([topic])
    got, end = {}, time.time() + 60
    while len(got) < n and time.time() < end:
        m = c.poll(1)
        if m is None:
            continue
        if m.error():
            raise ck.KafkaException(m.error())
        got[(m.partition(), m.offset())] = (m.key(), m.value())
    c.commit(asynchronous=False)
    c.close()
    return got


def transact():
    tx = ck.Producer(conf("APP", transactional_id=GROUP + "-tx"))
    tx.init_transactions(60)
    for end in ("aborted", "committed"):
        tx.begin_transaction()
        for i in range(10):
            tx.produce(TOPIC + "-tx", key=str(i), value=end)
        tx.flush(60)
        if end == "aborted":
            tx.abort_transaction(60)
        else:
            tx.commit_transaction(60)
    got = consume(TOPIC + "-tx", 10, GROUP + "-tx", isolation_level="read_committed")
    assert {v for _, v in got.values()} == {b"committed"}, got


def offsets(adm):
    ends = result(adm.list_offsets({ck.TopicPartition(TOPIC, p): OffsetSpec.latest() for p in range(4)}))
    assert sum(e.offset for e in ends.values()) == COUNT, ends
    committed = result(adm.list_consumer_group_offsets([ck.ConsumerGroupTopicPartitions(GROUP)]))[GROUP]
    assert sum(p.offset for p in committed.topic_partitions if p.offset > 0) == COUNT
    groups = adm.list_consumer_groups().result(30).valid
    types = {g.group_id: g.type.name for g in groups}
    assert types.get(GROUP) == "CLASSIC" and types.get(GROUP + "-848") == "CONSUMER", types
    result(adm.describe_consumer_groups([GROUP]))


def main():
    print(f"{ck.version()} (librdkafka {ck.libversion()[0]})", flush=True)
    adm = AdminClient(conf("ADMIN"))
    administer(adm)
    sent = produce()
    assert consume(TOPIC, COUNT, GROUP) == sent
    assert consume(TOPIC, COUNT, GROUP + "-848", group_protocol="consumer") == sent
    transact()
    offsets(adm)


main()
