// A topic with keys, and its table view, by Apache Pulsar's own Java client; benchmarks/compaction_table.py runs it.
// java -cp JARS TableViews.java URL TOPIC fill MESSAGES KEYS BYTES: random keys, each at least once
// java -cp JARS TableViews.java URL TOPIC open OTHER COUNT: prints seconds and keys; another topic's view is opened before
import java.util.Random;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicReference;
import org.apache.pulsar.client.api.BatcherBuilder;
import org.apache.pulsar.client.api.Producer;
import org.apache.pulsar.client.api.PulsarClient;
import org.apache.pulsar.client.api.Schema;
import org.apache.pulsar.client.api.TableView;

public class TableViews {
    public static void main(String[] words) throws Exception {
        try (PulsarClient client = PulsarClient.builder().serviceUrl(words[0]).statsInterval(0, TimeUnit.SECONDS).build()) {
            if (words[2].equals("fill")) {
                fill(client, words[1], Integer.parseInt(words[3]), Integer.parseInt(words[4]), new byte[Integer.parseInt(words[5])]);
            } else {
                open(client, words[3]);
                for (int number = 0; number < Integer.parseInt(words[4]); number++) {
                    System.out.println("opened " + open(client, words[1]));
                }
            }
        }
        System.out.flush();
        Runtime.getRuntime().halt(0);
    }

    private static void fill(PulsarClient client, String topic, int messages, int keys, byte[] data) throws Exception {
        AtomicReference<Throwable> failure = new AtomicReference<>();
        Random random = new Random(7);
        try (Producer<byte[]> producer = client.newProducer().topic(topic).blockIfQueueFull(true)
                .maxPendingMessages(20_000).batchingMaxPublishDelay(100, TimeUnit.MILLISECONDS).batchingMaxMessages(1000).batcherBuilder(BatcherBuilder.DEFAULT).create()) {
            for (int number = 0; number < messages; number++) {
                int key = number < keys ? number : random.nextInt(keys);
                producer.newMessage().key("key-" + key).value(data).sendAsync().exceptionally(error -> {
                    failure.set(error);
                    return null;
                });
            }
            producer.flush();
        }
        if (failure.get() != null) {
            throw new IllegalStateException(failure.get());
        }
    }

    private static String open(PulsarClient client, String topic) throws Exception {
        long began = System.nanoTime();
        try (TableView<byte[]> view = client.newTableView(Schema.BYTES).topic(topic).create()) {
            return (System.nanoTime() - began) / 1e9 + " " + view.size();
        }
    }
}
