package interop;

import static interop.Check.*;

import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.concurrent.TimeUnit;
import org.apache.pulsar.client.api.Consumer;
import org.apache.pulsar.client.api.Message;
import org.apache.pulsar.client.api.MessageId;
import org.apache.pulsar.client.api.MessageIdAdv;
import org.apache.pulsar.client.api.Producer;
import org.apache.pulsar.client.api.Reader;
import org.apache.pulsar.client.api.SubscriptionInitialPosition;
import org.apache.pulsar.client.api.TableView;

/** Readers, table views, seeking, and the end of a topic as clients ask for it. */
final class Reading {
    private Reading() {}

    static void list(Map<String, Main.Scenario> scenarios) {
        scenarios.put("reader from the start", Reading::fromStart);
        scenarios.put("reader from an id", Reading::fromId);
        scenarios.put("reader at the end", Reading::atEnd);
        scenarios.put("reader from some time ago", Reading::fromTime);
        scenarios.put("reader seeks", Reading::readerSeeks);
        scenarios.put("reader of partitions", Reading::partitions);
        scenarios.put("consumer seeks by id", Reading::seekId);
        scenarios.put("consumer seeks by time", Reading::seekTime);
        scenarios.put("last message id", Reading::lastMessageId);
        scenarios.put("table view", Reading::tableView);
    }

    private static List<String> rest(Reader<byte[]> reader) throws Exception {
        List<String> texts = new ArrayList<>();
        while (reader.hasMessageAvailable()) {
            Message<byte[]> message = reader.readNext(SECONDS_MAX, TimeUnit.SECONDS);
            that(message != null, "hasMessageAvailable promised a message after " + texts);
            texts.add(text(message));
        }
        return texts;
    }

    private static void fromStart(Server server) throws Exception {
        for (boolean batching : new boolean[] {true, false}) {
            String topic = server.topic();
            try (Producer<byte[]> producer = server.client.newProducer().topic(topic).enableBatching(batching).create();
                    Reader<byte[]> reader = server.client.newReader().topic(topic).startMessageId(MessageId.earliest).create()) {
                that(!reader.hasMessageAvailable(), "an empty topic has nothing");
                send(producer, 0, 25);
                equal(numbers(0, 25), rest(reader), "all, batching " + batching);
                send(producer, 25, 27);
                equal(numbers(25, 27), rest(reader), "what came later, batching " + batching);
            }
        }
    }

    private static void fromId(Server server) throws Exception {
        for (boolean batching : new boolean[] {true, false}) {
            String topic = server.topic();
            try (Producer<byte[]> producer = server.client.newProducer().topic(topic).enableBatching(batching)
                            .batchingMaxPublishDelay(1, TimeUnit.SECONDS).create();
                    Consumer<byte[]> keeper = server.client.newConsumer().topic(topic).subscriptionName("k").subscribe()) {
                List<MessageId> ids = send(producer, 0, 10);
                var builder = server.client.newReader().topic(topic).startMessageId(ids.get(4));
                try (Reader<byte[]> after = builder.create()) {
                    equal(numbers(5, 10), rest(after), "after it, batching " + batching);
                }
                try (Reader<byte[]> from = builder.startMessageIdInclusive().create()) {
                    equal(numbers(4, 10), rest(from), "from it, batching " + batching);
                }
                MessageId copy = MessageId.fromByteArray(ids.get(9).toByteArray());
                try (Reader<byte[]> last = server.client.newReader().topic(topic).startMessageId(copy).create()) {
                    that(!last.hasMessageAvailable(), "nothing after the last, batching " + batching);
                }
            }
        }
    }

    private static void atEnd(Server server) throws Exception {
        String topic = server.topic();
        try (Producer<byte[]> producer = server.client.newProducer().topic(topic).create();
                Consumer<byte[]> keeper = server.client.newConsumer().topic(topic).subscriptionName("k").subscribe()) {
            send(producer, 0, 10);
            try (Reader<byte[]> reader = server.client.newReader().topic(topic).startMessageId(MessageId.latest).create()) {
                that(!reader.hasMessageAvailable(), "nothing new yet");
                send(producer, 10, 11);
                equal(numbers(10, 11), rest(reader), "what is new");
            }
            try (Reader<byte[]> reader = server.client.newReader().topic(topic).startMessageId(MessageId.latest)
                    .startMessageIdInclusive().create()) {
                equal(numbers(10, 11), rest(reader), "the last one, included");
            }
        }
    }

    private static void fromTime(Server server) throws Exception {
        String topic = server.topic();
        try (Producer<byte[]> producer = server.client.newProducer().topic(topic).create();
                Consumer<byte[]> keeper = server.client.newConsumer().topic(topic).subscriptionName("k").subscribe()) {
            send(producer, 0, 5);
            Thread.sleep(3000);
            send(producer, 5, 10);
            try (Reader<byte[]> reader = server.client.newReader().topic(topic)
                    .startMessageFromRollbackDuration(2, TimeUnit.SECONDS).create()) {
                equal(numbers(5, 10), rest(reader), "of the last 2 s");
            }
        }
    }

    private static void readerSeeks(Server server) throws Exception {
        String topic = server.topic();
        try (Producer<byte[]> producer = server.client.newProducer().topic(topic)
                        .batchingMaxPublishDelay(1, TimeUnit.SECONDS).create();
                Consumer<byte[]> keeper = server.client.newConsumer().topic(topic).subscriptionName("k").subscribe();
                Reader<byte[]> reader = server.client.newReader().topic(topic).startMessageId(MessageId.earliest).create()) {
            List<MessageId> ids = send(producer, 0, 10);
            equal(numbers(0, 10), rest(reader), "first pass");
            reader.seek(ids.get(3));
            equal(numbers(4, 10), rest(reader), "after an id inside of a batch");
            reader.seek(MessageId.earliest);
            equal(numbers(0, 10), rest(reader), "from the start");
            reader.seek(MessageId.latest);
            that(!reader.hasMessageAvailable(), "nothing after the end");
            Thread.sleep(20);
            long time = System.currentTimeMillis();
            send(producer, 10, 12);
            reader.seek(time);
            equal(numbers(10, 12), rest(reader), "from a time");
            reader.seek(0);
            equal(numbers(0, 12), rest(reader), "from 1970");
        }
    }

    private static void partitions(Server server) throws Exception {
        String topic = server.partitioned(3);
        try (Producer<byte[]> producer = server.client.newProducer().topic(topic).enableBatching(false).create();
                Reader<byte[]> reader = server.client.newReader().topic(topic).startMessageId(MessageId.earliest).create()) {
            send(producer, 0, 12);
            List<String> texts = rest(reader);
            equal(12, texts.size(), "messages of all partitions");
            reader.seek(MessageId.earliest);
            equal(12, rest(reader).size(), "again");
        }
    }

    private static void seekId(Server server) throws Exception {
        String topic = server.topic();
        try (Producer<byte[]> producer = server.client.newProducer().topic(topic).enableBatching(false).create();
                Consumer<byte[]> consumer = server.client.newConsumer().topic(topic).subscriptionName("s").subscribe()) {
            List<MessageId> ids = send(producer, 0, 10);
            consumer.acknowledgeCumulative(take(consumer, 10).get(9));
            consumer.seek(ids.get(6));
            equal(numbers(7, 10), texts(take(consumer, 3)), "after the id");
            consumer.seek(MessageId.earliest);
            equal(numbers(0, 10), texts(take(consumer, 10)), "from the start");
            consumer.seek(MessageId.latest);
            nothing(consumer);
            send(producer, 10, 11);
            equal(numbers(10, 11), texts(take(consumer, 1)), "what is new");
        }
        try (Consumer<byte[]> inclusive = server.client.newConsumer().topic(topic).subscriptionName("i")
                .startMessageIdInclusive().subscriptionInitialPosition(SubscriptionInitialPosition.Earliest).subscribe()) {
            List<Message<byte[]>> messages = take(inclusive, 3);
            inclusive.seek(messages.get(2).getMessageId());
            equal("2", text(next(inclusive)), "from the id");
        }
    }

    private static void seekTime(Server server) throws Exception {
        String topic = server.partitioned(2);
        try (Producer<byte[]> producer = server.client.newProducer().topic(topic).enableBatching(false).create();
                Consumer<byte[]> consumer = server.client.newConsumer().topic(topic).subscriptionName("s").subscribe()) {
            send(producer, 0, 10);
            take(consumer, 10);
            Thread.sleep(50);
            long time = System.currentTimeMillis();
            Thread.sleep(50);
            send(producer, 10, 16);
            take(consumer, 6);
            consumer.seek(time);
            equal(6, take(consumer, 6).size(), "after the time");
            nothing(consumer);
        }
    }

    private static void lastMessageId(Server server) throws Exception {
        String topic = server.topic();
        try (Producer<byte[]> producer = server.client.newProducer().topic(topic)
                        .batchingMaxPublishDelay(1, TimeUnit.SECONDS).create();
                Consumer<byte[]> consumer = server.client.newConsumer().topic(topic).subscriptionName("s").subscribe()) {
            List<MessageId> ids = send(producer, 0, 10);
            var last = consumer.getLastMessageIds().get(0);
            equal(topic, last.getOwnerTopic(), "topic of the id");
            equal(0, last.compareTo(ids.get(9)), "last id " + last + " of " + ids.get(9));
            equal(9, ((MessageIdAdv) last).getBatchIndex(), "batch index");
        }
    }

    private static void tableView(Server server) throws Exception {
        String topic = server.partitioned(2);
        try (Producer<byte[]> producer = server.client.newProducer().topic(topic).create()) {
            for (int n = 0; n < 30; n++) {
                producer.newMessage().key("k" + n % 10).value(Integer.toString(n).getBytes()).sendAsync();
            }
            producer.flush();
            try (TableView<byte[]> view = server.client.newTableView().topic(topic).create()) {
                equal(10, view.size(), "keys");
                var expected = new TreeMap<String, String>();
                for (int n = 20; n < 30; n++) {
                    expected.put("k" + n % 10, Integer.toString(n));
                }
                var actual = new TreeMap<String, String>();
                view.forEach((key, value) -> actual.put(key, new String(value)));
                equal(expected, actual, "latest values");
                producer.newMessage().key("k0").value("new".getBytes()).send();
                producer.newMessage().key("k1").value(null).send();
                eventually(() -> new String(view.get("k0")).equals("new") && view.get("k1") == null, "updates");
                view.refreshAsync().get(SECONDS_MAX, TimeUnit.SECONDS);
                equal(9, view.size(), "a key was removed");
            }
        }
    }
}
