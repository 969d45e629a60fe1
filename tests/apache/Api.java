// What Apache BookKeeper's client says of a cluster, call by call, for tests: java -cp JARS Api.java URI
import static java.nio.charset.StandardCharsets.UTF_8;

import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.concurrent.Callable;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.TimeUnit;
import org.apache.bookkeeper.client.BKException;
import org.apache.bookkeeper.client.BookKeeper;
import org.apache.bookkeeper.client.BookKeeperAdmin;
import org.apache.bookkeeper.client.LedgerHandle;
import org.apache.bookkeeper.client.RackawareEnsemblePlacementPolicy;
import org.apache.bookkeeper.client.RegionAwareEnsemblePlacementPolicy;
import org.apache.bookkeeper.client.ZoneawareEnsemblePlacementPolicy;
import org.apache.bookkeeper.client.EnsemblePlacementPolicy;
import org.apache.bookkeeper.client.api.CreateBuilder;
import org.apache.bookkeeper.client.api.DigestType;
import org.apache.bookkeeper.client.api.LastConfirmedAndEntry;
import org.apache.bookkeeper.client.api.LedgerEntries;
import org.apache.bookkeeper.client.api.LedgerEntry;
import org.apache.bookkeeper.client.api.ReadHandle;
import org.apache.bookkeeper.client.api.WriteAdvHandle;
import org.apache.bookkeeper.client.api.WriteFlag;
import org.apache.bookkeeper.client.api.WriteHandle;
import org.apache.bookkeeper.conf.ClientConfiguration;
import org.apache.bookkeeper.net.AbstractDNSToSwitchMapping;

public class Api {
    private static final byte[] PASSWORD = "pw".getBytes(UTF_8);
    private static String uri;

    public static void main(String[] words) throws Exception {
        uri = words[0];
        for (boolean v2 : new boolean[] {false, true}) {
            String kind = v2 ? "v2 " : "v3 ";
            try (BookKeeper client = new BookKeeper(conf(v2))) {
                for (DigestType digest : DigestType.values()) {
                    say(kind + digest, () -> everything(client, digest));
                }
                say(kind + "adv", () -> outOfOrder(client));
                say(kind + "chosen id", () -> chosenId(client, v2 ? 7_000_000_001L : 8_000_000_000_001L));
                say(kind + "highest id", () -> chosenId(client, v2 ? Long.MAX_VALUE : Long.MAX_VALUE - 1));
                say(kind + "sizes", () -> sizes(client));
                say(kind + "deferred", () -> deferred(client));
                say(kind + "tail", () -> tail(client));
                say(kind + "poll", () -> poll(client));
                say(kind + "batch", () -> batch(client));
                say(kind + "fence", () -> fence(client));
                say(kind + "passwords", () -> passwords(client));
                say(kind + "delete", () -> delete(client));
                say(kind + "missing", () -> missing(client));
                say(kind + "admin", () -> admin(client));
                say(kind + "unconfirmed", () -> unconfirmed(client));
                say(kind + "striped", () -> striped(client));
                say(kind + "gap", () -> gap(client));
            }
            for (Class<? extends EnsemblePlacementPolicy> policy : List.of(
                    RackawareEnsemblePlacementPolicy.class, RegionAwareEnsemblePlacementPolicy.class,
                    ZoneawareEnsemblePlacementPolicy.class)) {
                say(kind + policy.getSimpleName(), () -> with(conf(v2).setEnsemblePlacementPolicy(policy), Zones.class));
            }
            say(kind + "sticky", () -> with(conf(v2).setStickyReadsEnabled(true)));
            say(kind + "reorder", () -> with(conf(v2).setReorderReadSequenceEnabled(true)));
            say(kind + "opportunistic", () -> wide(conf(v2)));
            say(kind + "parallel recovery", () -> with(conf(v2).setEnableParallelRecoveryRead(true).setRecoveryReadBatchSize(10)));
            say(kind + "speculative", () -> with(conf(v2).setFirstSpeculativeReadTimeout(1)));
            say(kind + "disk weight", () -> with(conf(v2).setDiskWeightBasedPlacementEnabled(true).setGetBookieInfoIntervalSeconds(1, TimeUnit.SECONDS)));
            say(kind + "explicit lac", () -> with(conf(v2).setExplictLacInterval(10)));
            say(kind + "channels", () -> with(conf(v2).setNumChannelsPerBookie(16)));
        }
        System.out.flush();
        Runtime.getRuntime().halt(0);
    }

    private static ClientConfiguration conf(boolean v2) {
        ClientConfiguration conf = new ClientConfiguration();
        conf.setMetadataServiceUri(uri);
        conf.setUseV2WireProtocol(v2);
        conf.setNettyMaxFrameSizeBytes(5253120);
        return conf;
    }

    private static void say(String name, Callable<Object> work) {
        String result;
        try {
            result = String.valueOf(work.call());
        } catch (ExecutionException error) {
            result = code(error.getCause());
        } catch (Exception error) {
            result = code(error);
        }
        System.out.println("says " + name + ": " + result);
    }

    private static String code(Throwable error) {
        if (error instanceof BKException) {
            return "code " + ((BKException) error).getCode();
        }
        return error.getClass().getSimpleName() + " " + error.getMessage();
    }

    private static WriteHandle create(BookKeeper client, DigestType digest, WriteFlag... flags) throws Exception {
        CreateBuilder builder = client.newCreateLedgerOp().withEnsembleSize(3).withWriteQuorumSize(3).withAckQuorumSize(2)
            .withDigestType(digest).withPassword(PASSWORD).withCustomMetadata(Map.of("color", "blue".getBytes(UTF_8)));
        return (flags.length == 0 ? builder : builder.withWriteFlags(flags)).execute().get();
    }

    private static ReadHandle open(BookKeeper client, long id, DigestType digest, boolean recovers) throws Exception {
        return client.newOpenLedgerOp().withLedgerId(id).withDigestType(digest).withPassword(PASSWORD)
            .withRecovery(recovers).execute().get();
    }

    private static String read(ReadHandle handle, long first, long last) throws Exception {
        StringBuilder text = new StringBuilder();
        try (LedgerEntries entries = handle.read(first, last)) {
            for (LedgerEntry entry : entries) {
                text.append(entry.getEntryId()).append('=').append(new String(entry.getEntryBytes(), UTF_8))
                    .append('/').append(entry.getLength()).append(' ');
            }
        }
        return text.toString().trim();
    }

    private static Object everything(BookKeeper client, DigestType digest) throws Exception {
        WriteHandle writer = create(client, digest);
        for (int n = 0; n < 12; n++) {
            writer.append(("entry " + n).getBytes(UTF_8));
        }
        try (ReadHandle reader = open(client, writer.getId(), digest, false)) {
            String before = reader.getLastAddConfirmed() + " " + reader.readLastAddConfirmed() + " " + reader.tryReadLastAddConfirmed()
                + " " + reader.isClosed();
            String some = read(reader, 3, 5);
            String beyond = readUnconfirmed(reader, 3, 11);
            writer.close();
            try (ReadHandle again = open(client, writer.getId(), digest, true)) {
                Map<String, byte[]> custom = again.getLedgerMetadata().getCustomMetadata();
                return before + " | " + some + " | " + beyond + " | " + again.getLastAddConfirmed() + " " + again.getLength() + " " + again.isClosed()
                    + " " + read(again, 0, 11).hashCode() + " " + new String(custom.get("color"), UTF_8);
            }
        }
    }

    private static String readUnconfirmed(ReadHandle reader, long first, long last) throws Exception {
        StringBuilder text = new StringBuilder();
        try (LedgerEntries entries = reader.readUnconfirmed(first, last)) {
            for (LedgerEntry entry : entries) {
                text.append(entry.getEntryId()).append(',');
            }
        }
        return text.toString();
    }

    private static Object outOfOrder(BookKeeper client) throws Exception {
        WriteAdvHandle writer = client.newCreateLedgerOp().withEnsembleSize(3).withWriteQuorumSize(2).withAckQuorumSize(2)
            .withPassword(PASSWORD).withDigestType(DigestType.CRC32C).makeAdv().execute().get();
        List<CompletableFuture<Long>> done = new ArrayList<>();
        for (int n : new int[] {3, 1, 7, 5, 2, 6, 4, 0}) {
            done.add(writer.writeAsync(n, ("entry " + n).getBytes(UTF_8)));
        }
        StringBuilder text = new StringBuilder();
        for (CompletableFuture<Long> each : done) {
            text.append(each.get(20, TimeUnit.SECONDS)).append(' ');
        }
        String twice;
        try {
            writer.write(3, "again".getBytes(UTF_8));
            twice = "none";
        } catch (BKException error) {
            twice = "code " + error.getCode();
        }
        writer.close();
        try (ReadHandle reader = open(client, writer.getId(), DigestType.CRC32C, true)) {
            return text + twice + " " + read(reader, 0, reader.getLastAddConfirmed());
        }
    }

    private static Object chosenId(BookKeeper client, long id) throws Exception {
        WriteAdvHandle writer = client.newCreateLedgerOp().withEnsembleSize(3).withWriteQuorumSize(3).withAckQuorumSize(3)
            .withPassword(PASSWORD).makeAdv().withLedgerId(id).execute().get();
        writer.write(0, "x".getBytes(UTF_8));
        writer.close();
        String twice;
        try {
            client.newCreateLedgerOp().withPassword(PASSWORD).makeAdv().withLedgerId(id).execute().get();
            twice = "none";
        } catch (ExecutionException error) {
            twice = code(error.getCause());
        }
        String text;
        try (ReadHandle reader = open(client, id, DigestType.CRC32, true)) {
            text = read(reader, 0, 0) + " " + twice;
        } catch (ExecutionException error) {
            text = code(error.getCause()) + " " + twice;
        }
        client.newDeleteLedgerOp().withLedgerId(id).execute().get();
        return writer.getId() + " " + text;
    }

    private static Object sizes(BookKeeper client) throws Exception {
        StringBuilder text = new StringBuilder();
        for (int size : new int[] {0, 1, 4096, 1 << 20, 5 << 20, 5253120 - 200}) {
            WriteHandle writer = create(client, DigestType.CRC32C);
            try {
                writer.append(new byte[size]);
                writer.append(new byte[1]);
                writer.append(new byte[0]);
                writer.close();
                try (ReadHandle reader = open(client, writer.getId(), DigestType.CRC32C, true);
                        LedgerEntries entries = reader.read(0, 2)) {
                    for (LedgerEntry entry : entries) {
                        text.append(entry.getEntryBytes().length).append('/').append(entry.getLength()).append(' ');
                    }
                }
            } catch (BKException error) {
                text.append(size).append(" code ").append(error.getCode()).append(' ');
            }
        }
        return text;
    }

    private static Object deferred(BookKeeper client) throws Exception {
        WriteHandle writer = create(client, DigestType.CRC32C, WriteFlag.DEFERRED_SYNC);
        for (int n = 0; n < 5; n++) {
            writer.append(("entry " + n).getBytes(UTF_8));
        }
        String before = writer.getLastAddConfirmed() + " ";
        writer.force().get();
        before += writer.getLastAddConfirmed();
        writer.append("last".getBytes(UTF_8));
        try (ReadHandle reader = open(client, writer.getId(), DigestType.CRC32C, true)) {
            return before + " " + read(reader, 0, reader.getLastAddConfirmed());
        }
    }

    private static Object tail(BookKeeper client) throws Exception {
        WriteHandle writer = create(client, DigestType.CRC32C);
        writer.append("zero".getBytes(UTF_8));
        StringBuilder text = new StringBuilder();
        try (ReadHandle reader = open(client, writer.getId(), DigestType.CRC32C, false)) {
            for (int n = 1; n < 20; n++) {
                writer.append(("entry " + n).getBytes(UTF_8));
                long last = n % 2 == 0 ? reader.readLastAddConfirmed() : reader.tryReadLastAddConfirmed();
                text.append(last).append(' ');
            }
            return text + read(reader, 0, 18).substring(0, 40);
        }
    }

    private static Object poll(BookKeeper client) throws Exception {
        WriteHandle writer = create(client, DigestType.CRC32C);
        writer.append("zero".getBytes(UTF_8));
        StringBuilder text = new StringBuilder();
        try (ReadHandle reader = open(client, writer.getId(), DigestType.CRC32C, false)) {
            for (int n = 0; n < 6; n++) {
                CompletableFuture<LastConfirmedAndEntry> polled = reader.readLastAddConfirmedAndEntryAsync(n, 20_000, n % 2 == 0);
                writer.append(("entry " + (n + 1)).getBytes(UTF_8));
                writer.append("".getBytes(UTF_8));
                try (LastConfirmedAndEntry got = polled.get(30, TimeUnit.SECONDS)) {
                    text.append(got.hasEntry() ? new String(got.getEntry().getEntryBytes(), UTF_8) + "@" + got.getEntry().getEntryId() : "none").append(' ');
                }
            }
            long last = reader.readLastAddConfirmed();
            CompletableFuture<LastConfirmedAndEntry> idle = reader.readLastAddConfirmedAndEntryAsync(last + 5, 300, false);
            try (LastConfirmedAndEntry got = idle.get(30, TimeUnit.SECONDS)) {
                text.append(got.hasEntry());
            }
            writer.close();
            return text;
        }
    }

    private static Object batch(BookKeeper client) throws Exception {
        WriteHandle writer = create(client, DigestType.CRC32C);
        for (int n = 0; n < 50; n++) {
            writer.append(new byte[n * 100]);
        }
        writer.close();
        StringBuilder text = new StringBuilder();
        try (ReadHandle reader = open(client, writer.getId(), DigestType.CRC32C, true)) {
            for (int[] each : new int[][] {{0, 10, 1 << 20}, {0, 1000, 0}, {5, 0, 5000}, {49, 5, 1}, {20, 3, 1}, {0, 0, 0}}) {
                int count = 0;
                long last = -1;
                try (LedgerEntries entries = reader.batchRead(each[0], each[1], each[2])) {
                    for (LedgerEntry entry : entries) {
                        count++;
                        last = entry.getEntryId();
                    }
                    text.append(count).append(" to ").append(last).append("; ");
                } catch (BKException error) {
                    text.append("code ").append(error.getCode()).append("; ");
                }
            }
        }
        return text;
    }

    private static Object fence(BookKeeper client) throws Exception {
        WriteHandle writer = create(client, DigestType.CRC32C);
        for (int n = 0; n < 7; n++) {
            writer.append(("entry " + n).getBytes(UTF_8));
        }
        try (ReadHandle reader = open(client, writer.getId(), DigestType.CRC32C, true)) {
            String text = reader.getLastAddConfirmed() + " " + reader.getLength();
            try {
                writer.append("late".getBytes(UTF_8));
                return text + " not fenced";
            } catch (BKException error) {
                return text + " code " + error.getCode();
            }
        }
    }

    private static Object passwords(BookKeeper client) throws Exception {
        WriteHandle writer = create(client, DigestType.MAC);
        writer.append("entry".getBytes(UTF_8));
        StringBuilder text = new StringBuilder();
        for (DigestType digest : List.of(DigestType.MAC, DigestType.CRC32)) {
            for (String password : List.of("other", "pw")) {
                try {
                    client.newOpenLedgerOp().withLedgerId(writer.getId()).withDigestType(digest)
                        .withPassword(password.getBytes(UTF_8)).withRecovery(true).execute().get().close();
                    text.append("opened ");
                } catch (ExecutionException error) {
                    text.append(code(error.getCause())).append(' ');
                }
            }
        }
        return text;
    }

    private static Object delete(BookKeeper client) throws Exception {
        WriteHandle writer = create(client, DigestType.CRC32C);
        writer.append("entry".getBytes(UTF_8));
        writer.close();
        client.newDeleteLedgerOp().withLedgerId(writer.getId()).execute().get();
        try {
            open(client, writer.getId(), DigestType.CRC32C, true);
            return "opened";
        } catch (ExecutionException error) {
            return code(error.getCause());
        }
    }

    private static Object missing(BookKeeper client) throws Exception {
        WriteHandle writer = create(client, DigestType.CRC32C);
        try (ReadHandle reader = open(client, writer.getId(), DigestType.CRC32C, false)) {
            StringBuilder text = new StringBuilder();
            text.append(reader.getLastAddConfirmed()).append(' ').append(reader.readLastAddConfirmed()).append(' ');
            for (int first : new int[] {0, 5}) {
                try {
                    text.append(readUnconfirmed(reader, first, first + 2));
                } catch (BKException error) {
                    text.append("code ").append(error.getCode()).append(' ');
                }
            }
            try (ReadHandle closed = open(client, writer.getId(), DigestType.CRC32C, true)) {
                return text.append(closed.getLastAddConfirmed()).append(' ').append(closed.getLength());
            }
        }
    }

    private static Object admin(BookKeeper client) throws Exception {
        WriteHandle writer = create(client, DigestType.CRC32);
        for (int n = 0; n < 5; n++) {
            writer.append(("entry " + n).getBytes(UTF_8));
        }
        try (BookKeeperAdmin admin = new BookKeeperAdmin(client)) {
            LedgerHandle handle = admin.openLedgerNoRecovery(writer.getId());
            int count = 0;
            for (org.apache.bookkeeper.client.LedgerEntry entry : admin.readEntries(writer.getId(), 0, -1)) {
                count++;
            }
            String text = handle.getLastAddConfirmed() + " " + count + " " + admin.getAvailableBookies().size() + " " + admin.getReadOnlyBookies().size()
                + " " + admin.getAllBookies().size();
            handle = admin.openLedger(writer.getId());
            return text + " " + handle.getLastAddConfirmed() + " " + handle.isClosed();
        }
    }

    private static Object unconfirmed(BookKeeper client) throws Exception {
        LedgerHandle writer = client.createLedger(3, 3, 2, BookKeeper.DigestType.CRC32C, PASSWORD);
        for (int n = 0; n < 5; n++) {
            writer.addEntry(("entry " + n).getBytes(UTF_8));
        }
        LedgerHandle reader = client.openLedgerNoRecovery(writer.getId(), BookKeeper.DigestType.CRC32C, PASSWORD);
        String last = new String(reader.readLastEntry().getEntry(), UTF_8);
        return last + " " + reader.readLastConfirmed() + " " + reader.tryReadLastConfirmed() + " " + reader.readExplicitLastConfirmed();
    }

    private static Object striped(BookKeeper client) throws Exception {
        WriteHandle writer = client.newCreateLedgerOp().withEnsembleSize(3).withWriteQuorumSize(2).withAckQuorumSize(1)
            .withDigestType(DigestType.CRC32).withPassword(PASSWORD).execute().get();
        for (int n = 0; n < 9; n++) {
            writer.append(("entry " + n).getBytes(UTF_8));
        }
        try (ReadHandle reader = open(client, writer.getId(), DigestType.CRC32, true)) {
            return reader.getLastAddConfirmed() + " " + read(reader, 0, reader.getLastAddConfirmed());
        }
    }

    // Entries behind a gap, which no writer has confirmed.
    private static Object gap(BookKeeper client) throws Exception {
        WriteAdvHandle writer = client.newCreateLedgerOp().withEnsembleSize(3).withWriteQuorumSize(3).withAckQuorumSize(3)
            .withPassword(PASSWORD).withDigestType(DigestType.CRC32C).makeAdv().execute().get();
        for (int n : new int[] {0, 1, 2}) {
            writer.write(n, ("entry " + n).getBytes(UTF_8));
        }
        writer.writeAsync(4, "gap".getBytes(UTF_8));
        writer.writeAsync(5, "gap".getBytes(UTF_8));
        try (ReadHandle reader = open(client, writer.getId(), DigestType.CRC32C, true)) {
            return reader.getLastAddConfirmed();
        }
    }

    // All in one zone.
    public static class Zones extends AbstractDNSToSwitchMapping {
        public List<String> resolve(List<String> names) {
            List<String> places = new ArrayList<>();
            for (String name : names) {
                places.add("/zone/domain");
            }
            return places;
        }

        public void reloadCachedMappings() {}
    }

    private static Object with(ClientConfiguration conf, Class<?> resolver) throws Exception {
        conf.setProperty("reppDnsResolverClass", resolver.getName());
        return with(conf);
    }

    private static Object with(ClientConfiguration conf) throws Exception {
        try (BookKeeper client = new BookKeeper(conf)) {
            WriteHandle writer = create(client, DigestType.CRC32C);
            for (int n = 0; n < 40; n++) {
                writer.append(("entry " + n).getBytes(UTF_8));
            }
            try (ReadHandle reader = open(client, writer.getId(), DigestType.CRC32C, true)) {
                return reader.getLastAddConfirmed() + " " + read(reader, 0, reader.getLastAddConfirmed()).hashCode();
            }
        }
    }

    private static Object wide(ClientConfiguration conf) throws Exception {
        try (BookKeeper client = new BookKeeper(conf.setOpportunisticStriping(true))) {
            WriteHandle writer = client.newCreateLedgerOp().withEnsembleSize(20).withWriteQuorumSize(2).withAckQuorumSize(2)
                .withPassword(PASSWORD).execute().get();
            writer.append("x".getBytes(UTF_8));
            return writer.getLedgerMetadata().getEnsembleSize() + " " + writer.getLedgerMetadata().getWriteQuorumSize();
        }
    }
}
