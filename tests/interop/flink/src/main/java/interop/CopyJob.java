package interop;

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.time.Duration;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.atomic.AtomicReference;
import org.apache.flink.api.common.JobStatus;
import org.apache.flink.api.common.eventtime.WatermarkStrategy;
import org.apache.flink.api.common.functions.RichFlatMapFunction;
import org.apache.flink.api.common.restartstrategy.RestartStrategies;
import org.apache.flink.api.common.serialization.SimpleStringSchema;
import org.apache.flink.api.common.state.CheckpointListener;
import org.apache.flink.api.common.state.ValueState;
import org.apache.flink.api.common.state.ValueStateDescriptor;
import org.apache.flink.api.common.time.Time;
import org.apache.flink.api.common.typeinfo.TypeInformation;
import org.apache.flink.api.common.typeinfo.Types;
import org.apache.flink.api.java.tuple.Tuple2;
import org.apache.flink.api.java.tuple.Tuple4;
import org.apache.flink.configuration.Configuration;
import org.apache.flink.connector.base.DeliveryGuarantee;
import org.apache.flink.connector.pulsar.common.config.PulsarOptions;
import org.apache.flink.connector.pulsar.sink.PulsarSink;
import org.apache.flink.connector.pulsar.sink.PulsarSinkOptions;
import org.apache.flink.connector.pulsar.source.PulsarSource;
import org.apache.flink.connector.pulsar.source.enumerator.cursor.StartCursor;
import org.apache.flink.connector.pulsar.source.reader.deserializer.PulsarDeserializationSchema;
import org.apache.flink.core.execution.JobClient;
import org.apache.flink.core.execution.SavepointFormatType;
import org.apache.flink.runtime.state.FunctionInitializationContext;
import org.apache.flink.runtime.state.FunctionSnapshotContext;
import org.apache.flink.streaming.api.checkpoint.CheckpointedFunction;
import org.apache.flink.streaming.api.environment.CheckpointConfig.ExternalizedCheckpointCleanup;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;
import org.apache.flink.util.Collector;
import org.apache.pulsar.client.api.Message;
import org.apache.pulsar.client.api.MessageIdAdv;

/**
 * A Flink job in this process that copies topics, exactly once. ../flink_copies.py starts it, disturbs it and judges.
 *
 * <pre>
 * CopyJob SERVICE_URL ADMIN_URL INPUT OUTPUT GUARANTEE FOLDER TRANSACTION_TIMEOUT_MS [CHECKPOINT]
 * </pre>
 *
 * INPUT is a topic of numbers, or a pattern of topics behind "pattern:". The job begins at CHECKPOINT, a folder of an earlier run.
 * Lines of the standard input: "fail record", "fail snapshot" or "fail commit" lets the job fail there once, and Flink
 * restarts it. The end of the input stops the job with a savepoint. It tells "checkpoint N" (numbers up to N are copied),
 * "failed WHERE", "stopped".
 */
public final class CopyJob {
    private static final int CHECKPOINT_MS = 500;
    private static final AtomicReference<String> FAILURE = new AtomicReference<>("");
    /** Newest number that was copied, by partition. */
    private static final Map<String, Long> COPIED = new ConcurrentHashMap<>();

    private CopyJob() {}

    public static void main(String[] arguments) throws Exception {
        var serviceUrl = arguments[0];
        var adminUrl = arguments[1];
        var folder = "file://" + arguments[5];
        var settings = new Configuration();
        if (arguments.length > 7) {
            settings.setString("execution.savepoint.path", arguments[7]);
        }
        var flink = StreamExecutionEnvironment.createLocalEnvironment(2, settings);
        flink.enableCheckpointing(CHECKPOINT_MS);
        flink.getCheckpointConfig().setCheckpointStorage(folder + "/checkpoints");
        flink.getCheckpointConfig().setExternalizedCheckpointCleanup(ExternalizedCheckpointCleanup.RETAIN_ON_CANCELLATION);
        flink.setRestartStrategy(RestartStrategies.fixedDelayRestart(1_000, Time.milliseconds(500)));
        flink.fromSource(source(serviceUrl, adminUrl, arguments[2]), WatermarkStrategy.noWatermarks(), "source")
                .keyBy(each -> each.f0)
                .flatMap(new Copy()).uid("copy")
                .sinkTo(sink(serviceUrl, adminUrl, arguments)).uid("sink");
        var job = flink.executeAsync("copy");
        var orders = new BufferedReader(new InputStreamReader(System.in));
        for (String line; (line = orders.readLine()) != null;) {
            FAILURE.set(line.substring("fail ".length()).intern());
        }
        stop(job, folder + "/savepoint");
        say("stopped");
        System.exit(0);
    }

    private static PulsarSource<Tuple4<String, Long, Long, String>> source(String serviceUrl, String adminUrl, String input) {
        var source = PulsarSource.builder()
                .setServiceUrl(serviceUrl)
                .setAdminUrl(adminUrl)
                .setSubscriptionName("flink")
                .setStartCursor(StartCursor.earliest())
                .setDeserializationSchema(new Positions());
        var pattern = input.startsWith("pattern:");
        return (pattern ? source.setTopicPattern(input.substring("pattern:".length())) : source.setTopics(input)).build();
    }

    private static PulsarSink<String> sink(String serviceUrl, String adminUrl, String[] arguments) {
        return PulsarSink.builder()
                .setServiceUrl(serviceUrl)
                .setAdminUrl(adminUrl)
                .setTopics(arguments[3])
                .setDeliveryGuarantee(DeliveryGuarantee.valueOf(arguments[4]))
                .setConfig(PulsarSinkOptions.PULSAR_WRITE_TRANSACTION_TIMEOUT, Long.parseLong(arguments[6]))
                .setConfig(PulsarOptions.PULSAR_OPERATION_TIMEOUT_MS, 60_000)
                .setSerializationSchema(new SimpleStringSchema())
                .build();
    }

    /** Again until the job takes it: it refuses while it restarts. */
    private static void stop(JobClient job, String folder) throws Exception {
        while (job.getJobStatus().get() != JobStatus.FINISHED) {
            try {
                job.stopWithSavepoint(false, folder, SavepointFormatType.CANONICAL).get();
            } catch (Exception refused) {
                System.err.println("not stopped: " + refused);
                Thread.sleep(Duration.ofMillis(CHECKPOINT_MS).toMillis());
            }
        }
    }

    private static void say(String line) {
        System.out.println(line);
        System.out.flush();
    }

    /** Partition, ledger, entry, and value. REQUIRES: no batches, whose messages share an entry. */
    private static final class Positions implements PulsarDeserializationSchema<Tuple4<String, Long, Long, String>> {
        private static final long serialVersionUID = 1;

        @Override
        public void deserialize(Message<byte[]> message, Collector<Tuple4<String, Long, Long, String>> out) {
            var id = (MessageIdAdv) message.getMessageId();
            out.collect(Tuple4.of(
                    message.getTopicName(), id.getLedgerId(), id.getEntryId(), new String(message.getData())));
        }

        @Override
        public TypeInformation<Tuple4<String, Long, Long, String>> getProducedType() {
            return Types.TUPLE(Types.STRING, Types.LONG, Types.LONG, Types.STRING);
        }
    }

    /**
     * Passes on what it hasn't seen.
     *
     * <p>Brokers deliver again what isn't acknowledged when a consumer comes back, after the broker ended or gave the
     * topic away. The connector acknowledges with checkpoints, and passes on twice what came between.
     */
    private static final class Copy extends RichFlatMapFunction<Tuple4<String, Long, Long, String>, String>
            implements CheckpointedFunction, CheckpointListener {
        private static final long serialVersionUID = 1;
        private transient ValueState<Tuple2<Long, Long>> last;

        @Override
        public void open(Configuration settings) {
            last = getRuntimeContext().getState(
                    new ValueStateDescriptor<>("last", Types.TUPLE(Types.LONG, Types.LONG)));
        }

        @Override
        public void flatMap(Tuple4<String, Long, Long, String> each, Collector<String> out) throws Exception {
            failAt("record");
            var seen = last.value();
            if (seen == null || each.f1 > seen.f0 || each.f1.equals(seen.f0) && each.f2 > seen.f1) {
                last.update(Tuple2.of(each.f1, each.f2));
                out.collect(each.f3);
                COPIED.put(each.f0, Long.parseLong(each.f3));
            }
        }

        @Override
        public void snapshotState(FunctionSnapshotContext context) {
            failAt("snapshot");
        }

        @Override
        public void initializeState(FunctionInitializationContext context) {}

        @Override
        public void notifyCheckpointComplete(long checkpointId) {
            failAt("commit");
            if (getRuntimeContext().getIndexOfThisSubtask() == 0) {
                say("checkpoint " + COPIED.values().stream().mapToLong(Long::longValue).min().orElse(-1));
            }
        }

        private static void failAt(String place) {
            if (FAILURE.compareAndSet(place, "")) { // of interned strings
                say("failed " + place);
                throw new IllegalStateException("as ordered: " + place);
            }
        }
    }
}
