// One load of transactions by Apache Pulsar's own Java client; benchmarks/transactions.py runs it.
// java -cp JARS TransactionLoads.java URL TOPIC THREADS CONSUMED PRODUCED WARM_UP_S SECONDS [plain]
// Each transaction of a thread acknowledges CONSUMED messages and sends PRODUCED ones of 1 KiB. "plain": the same without
// transactions. Prints one JSON object.
import java.util.Arrays;
import java.util.List;
import java.util.ArrayList;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.Semaphore;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicLong;
import java.util.stream.LongStream;
import org.apache.pulsar.client.api.Consumer;
import org.apache.pulsar.client.api.Message;
import org.apache.pulsar.client.api.Producer;
import org.apache.pulsar.client.api.PulsarClient;
import org.apache.pulsar.client.api.SubscriptionInitialPosition;
import org.apache.pulsar.client.api.SubscriptionType;
import org.apache.pulsar.client.api.transaction.Transaction;

public class TransactionLoads {
    private static final byte[] PAYLOAD = new byte[1024];
    private static final int AHEAD_MAX = 5000; // of messages to consume

    private final PulsarClient client;
    private final String topic;
    private final int consumed;
    private final int produced;
    private final boolean isPlain;
    private final long begin;
    private final long end;
    private final Semaphore ahead = new Semaphore(AHEAD_MAX);
    private final AtomicLong failed = new AtomicLong();
    private volatile Throwable failure;

    private TransactionLoads(PulsarClient client, String[] words) {
        this.client = client;
        topic = words[1];
        consumed = Integer.parseInt(words[3]);
        produced = Integer.parseInt(words[4]);
        begin = System.nanoTime() + TimeUnit.SECONDS.toNanos(Long.parseLong(words[5]));
        end = begin + TimeUnit.SECONDS.toNanos(Long.parseLong(words[6]));
        isPlain = words.length > 7;
    }

    public static void main(String[] words) throws Exception {
        try (PulsarClient client = PulsarClient.builder().serviceUrl(words[0]).enableTransaction(true)
                .statsInterval(0, TimeUnit.SECONDS).build()) {
            new TransactionLoads(client, words).run(Integer.parseInt(words[2]));
        }
        System.out.flush();
        Runtime.getRuntime().halt(0);
    }

    private void run(int count) throws Exception {
        long[][] times = new long[count][];
        List<Thread> threads = new ArrayList<>();
        for (int number = 0; number < count; number++) {
            int at = number;
            threads.add(new Thread(() -> times[at] = work()));
        }
        if (consumed > 0) {
            consumer().close(); // the subscription is there before the first message
            Thread feeder = new Thread(this::feed);
            feeder.setDaemon(true);
            feeder.start();
        }
        threads.forEach(Thread::start);
        for (Thread thread : threads) {
            thread.join();
        }
        print(Arrays.stream(times).flatMapToLong(Arrays::stream).sorted().toArray());
    }

    private void print(long[] times) {
        double seconds = (end - begin) / 1e9;
        System.out.printf("{\"transactions\": %d, \"txn_per_s\": %.1f, \"msg_per_s\": %.1f, \"p50_ms\": %.3f,"
            + " \"p99_ms\": %.3f, \"failed\": %d%s}%n", times.length, times.length / seconds,
            times.length * Math.max(consumed, produced) / seconds, at(times, 0.5), at(times, 0.99), failed.get(),
            failure == null ? "" : ", \"error\": \"" + failure.toString().replaceAll("[\"\\\\\\n]", " ") + "\"");
    }

    private static double at(long[] times, double share) {
        return times.length == 0 ? 0 : times[(int) (share * (times.length - 1))] / 1e6;
    }

    /** Nanoseconds of each transaction that ended within the time that is measured. */
    private long[] work() {
        LongStream.Builder times = LongStream.builder();
        try (Producer<byte[]> producer = client.newProducer().topic(topic).blockIfQueueFull(true).create();
                Consumer<byte[]> consumer = consumed > 0 ? consumer() : null) {
            while (System.nanoTime() < end) {
                long start = System.nanoTime();
                boolean isDone = one(producer, consumer);
                long now = System.nanoTime();
                if (isDone && now >= begin && now < end) {
                    times.add(now - start);
                }
            }
        } catch (Exception error) {
            failed.incrementAndGet();
            failure = error;
        }
        return times.build().toArray();
    }

    private boolean one(Producer<byte[]> producer, Consumer<byte[]> consumer) throws Exception {
        List<Message<byte[]>> received = new ArrayList<>();
        while (received.size() < consumed) {
            Message<byte[]> message = consumer.receive(1, TimeUnit.SECONDS);
            if (message != null) {
                received.add(message);
                ahead.release();
            } else if (System.nanoTime() >= end) {
                return false;
            }
        }
        Transaction transaction = isPlain ? null
            : client.newTransaction().withTransactionTimeout(1, TimeUnit.MINUTES).build().get();
        List<CompletableFuture<?>> operations = new ArrayList<>();
        for (int number = 0; number < produced; number++) {
            var message = isPlain ? producer.newMessage() : producer.newMessage(transaction);
            operations.add(message.value(PAYLOAD).sendAsync());
        }
        for (Message<byte[]> message : received) {
            operations.add(isPlain ? consumer.acknowledgeAsync(message)
                : consumer.acknowledgeAsync(message.getMessageId(), transaction));
        }
        if (!isPlain) {
            transaction.commit().get(); // waits for the operations
        }
        for (CompletableFuture<?> operation : operations) {
            operation.get();
        }
        return true;
    }

    private Consumer<byte[]> consumer() throws Exception {
        return client.newConsumer().topic(topic + "-in").subscriptionName("loads").receiverQueueSize(100)
            .subscriptionType(SubscriptionType.Shared).subscriptionInitialPosition(SubscriptionInitialPosition.Earliest)
            .subscribe();
    }

    /** Keeps messages in the topic that is consumed from; batches would make all of an entry wait for one thread. */
    private void feed() {
        try (Producer<byte[]> producer = client.newProducer().topic(topic + "-in").enableBatching(false)
                .blockIfQueueFull(true).create()) {
            while (System.nanoTime() < end) {
                if (ahead.tryAcquire(100, TimeUnit.MILLISECONDS)) {
                    producer.sendAsync(PAYLOAD);
                }
            }
        } catch (Exception error) {
            failed.incrementAndGet();
            failure = error;
        }
    }
}
