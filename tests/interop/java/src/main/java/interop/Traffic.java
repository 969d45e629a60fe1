package interop;

import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.Semaphore;
import java.util.concurrent.TimeUnit;
import org.apache.pulsar.client.api.Consumer;
import org.apache.pulsar.client.api.Message;
import org.apache.pulsar.client.api.Producer;
import org.apache.pulsar.client.api.PulsarClient;
import org.apache.pulsar.client.api.SubscriptionInitialPosition;
import org.apache.pulsar.client.api.SubscriptionType;

/**
 * Produces to topics and consumes from them until it is told to stop, through whatever happens to their brokers.
 * tests/interop/moving_cluster.py starts it and tells what its lines mean.
 */
public final class Traffic {
    private static final int PATIENCE_SECONDS = 120;
    private static final long PAUSE_MILLIS = 20;

    private final PulsarClient client;
    private final CountDownLatch stopping;
    private final String name;
    private final int window; // messages under way at once
    private final boolean batched;
    private volatile int all = -1; // how many were sent; -1: not known yet

    private Traffic(PulsarClient client, CountDownLatch stopping, String argument) {
        String[] parts = argument.split(",");
        this.client = client;
        this.stopping = stopping;
        this.name = parts[0];
        this.window = Integer.parseInt(parts[1]);
        this.batched = parts[2].equals("batched");
    }

    public static void main(String[] arguments) throws Exception {
        var stopping = new CountDownLatch(1);
        PulsarClient client = PulsarClient.builder().serviceUrl(arguments[0])
                .operationTimeout(PATIENCE_SECONDS, TimeUnit.SECONDS)
                .lookupTimeout(PATIENCE_SECONDS, TimeUnit.SECONDS).build();
        List<CompletableFuture<Void>> running = new ArrayList<>();
        for (int number = 1; number < arguments.length; number++) {
            var each = new Traffic(client, stopping, arguments[number]);
            running.add(inThread(each::produce));
            running.add(inThread(each::consume));
        }
        inThread(() -> {
            while (System.in.read() >= 0 && System.in.available() > 0) { // a line, or the end
                continue;
            }
            stopping.countDown();
        });
        for (var each : running) {
            each.join();
        }
        client.close();
        say("end");
        System.exit(0);
    }

    private interface Work {
        void run() throws Exception;
    }

    private static CompletableFuture<Void> inThread(Work work) {
        var done = new CompletableFuture<Void>();
        var thread = new Thread(() -> {
            try {
                work.run();
                done.complete(null);
            } catch (Throwable error) {
                fail(error);
            }
        });
        thread.setDaemon(true);
        thread.start();
        return done;
    }

    /** Sends 0, 1, 2, ... until it is stopped and all of them are acknowledged. */
    private void produce() throws Exception {
        try (Producer<byte[]> producer = client.newProducer().topic(name).enableBatching(batched)
                .batchingMaxPublishDelay(2 * PAUSE_MILLIS, TimeUnit.MILLISECONDS)
                .sendTimeout(PATIENCE_SECONDS, TimeUnit.SECONDS).create()) {
            var room = new Semaphore(window);
            int number = 0;
            while (!stopping.await(PAUSE_MILLIS, TimeUnit.MILLISECONDS)) {
                room.acquire();
                int mine = number++;
                producer.sendAsync(Integer.toString(mine).getBytes(StandardCharsets.UTF_8)).whenComplete((id, error) -> {
                    if (error != null) {
                        fail(error);
                    }
                    say("acked " + name + " " + mine);
                    room.release();
                });
            }
            room.acquire(window);
            say("sent " + name + " " + number);
            all = number;
        }
    }

    /** Goes on until it has received all that was sent. */
    private void consume() throws Exception {
        try (Consumer<byte[]> consumer = client.newConsumer().topic(name).subscriptionName("traffic")
                .subscriptionType(SubscriptionType.Exclusive)
                .subscriptionInitialPosition(SubscriptionInitialPosition.Earliest).subscribe()) {
            int next = 0;
            while (all < 0 || next < all) {
                Message<byte[]> message = consumer.receive(100, TimeUnit.MILLISECONDS);
                if (message == null) {
                    continue;
                }
                int number = Integer.parseInt(new String(message.getData(), StandardCharsets.UTF_8));
                say("received " + name + " " + number);
                consumer.acknowledge(message);
                if (number == next) {
                    next++;
                }
            }
        }
    }

    private static synchronized void say(String line) {
        System.out.println(line);
    }

    private static void fail(Throwable error) {
        error.printStackTrace();
        Runtime.getRuntime().halt(1);
    }
}
