// Apache BookKeeper's own client, for tests: java -cp JARS Ledgers.java URI write DIGEST PASSWORD COUNT... | go-on DIGEST PASSWORD | close-early DIGEST PASSWORD COUNT | read DIGEST PASSWORD LEDGER... | recover ... | race DIGEST PASSWORD ROUNDS | write-lac, read-lac: with an explicit last-add-confirmed
import java.util.Enumeration;
import java.util.Map;
import java.util.concurrent.ConcurrentSkipListMap;
import java.util.concurrent.CountDownLatch;
import org.apache.bookkeeper.client.AsyncCallback;
import org.apache.bookkeeper.client.BKException;
import org.apache.bookkeeper.client.BookKeeper;
import org.apache.bookkeeper.client.BookKeeper.DigestType;
import org.apache.bookkeeper.client.LedgerEntry;
import org.apache.bookkeeper.client.LedgerHandle;
import org.apache.bookkeeper.conf.ClientConfiguration;

public class Ledgers {
    public static void main(String[] words) throws Exception {
        ClientConfiguration conf = new ClientConfiguration();
        conf.setMetadataServiceUri(words[0]);
        conf.setUseV2WireProtocol(Boolean.getBoolean("v2"));
        conf.setExplictLacInterval(words[1].equals("write-lac") ? 10 : 0);
        try (BookKeeper client = new BookKeeper(conf)) {
            DigestType digest = DigestType.valueOf(words[2]);
            byte[] password = words[3].getBytes();
            if (words[1].equals("read-lac")) {
                LedgerHandle ledger = client.openLedgerNoRecovery(Long.parseLong(words[4]), digest, password);
                System.out.println("last " + ledger.readExplicitLastConfirmed());
            } else if (words[1].startsWith("write")) {
                for (int at = 4; at < words.length; at++) {
                    write(client, digest, password, Integer.parseInt(words[at]), words[1].equals("write-lac"));
                }
                Runtime.getRuntime().halt(0);
            } else if (words[1].equals("go-on")) {
                goOn(client, digest, password);
            } else if (words[1].equals("race")) {
                try (BookKeeper other = new BookKeeper(conf)) {
                    for (int round = 0; round < Integer.parseInt(words[4]); round++) {
                        race(client, other, digest, password);
                    }
                }
                Runtime.getRuntime().halt(0);
            } else if (words[1].equals("close-early")) {
                closeEarly(client, digest, password, Integer.parseInt(words[4]));
            } else {
                for (int at = 4; at < words.length; at++) {
                    read(client, Long.parseLong(words[at]), digest, password);
                }
            }
        }
    }

    // The ledger stays open, as if its writer had died.
    private static void write(BookKeeper client, DigestType digest, byte[] password, int count, boolean hasExplicitLac) throws Exception {
        LedgerHandle ledger = client.createLedger(3, 3, 2, digest, password);
        for (int number = 0; number < count; number++) {
            ledger.addEntry(("entry " + number).getBytes());
        }
        if (hasExplicitLac) {
            LedgerHandle reader = client.openLedgerNoRecovery(ledger.getId(), digest, password);
            while (reader.readExplicitLastConfirmed() < count - 1) {
                Thread.sleep(10);
            }
        }
        System.out.println("ledger " + ledger.getId());
        System.out.flush();
    }

    // Until it can't: then says how many entries were acknowledged, and why no more are.
    private static void goOn(BookKeeper client, DigestType digest, byte[] password) throws Exception {
        LedgerHandle ledger = client.createLedger(3, 3, 2, digest, password);
        System.out.println("ledger " + ledger.getId());
        System.out.flush();
        for (int number = 0; ; number++) {
            try {
                ledger.addEntry(("entry " + number).getBytes());
            } catch (BKException error) {
                System.out.println("last " + number + " " + error.getCode());
                System.out.flush();
                Runtime.getRuntime().halt(0);
            }
        }
    }

    // One client writes until it is fenced, the other recovers; whoever reads the output may do so, too.
    private static void race(BookKeeper client, BookKeeper other, DigestType digest, byte[] password) throws Exception {
        LedgerHandle ledger = client.createLedger(3, 3, 2, digest, password);
        CountDownLatch fenced = new CountDownLatch(1);
        for (int number = 0; number < 100; number++) {
            ledger.addEntry(("entry " + number).getBytes());
        }
        AddMore more = new AddMore(fenced);
        ledger.asyncAddEntry("entry 100".getBytes(), more, null);
        System.out.println("ledger " + ledger.getId());
        System.out.flush();
        LedgerHandle recovered = other.openLedger(ledger.getId(), digest, password);
        fenced.await();
        System.out.println("last " + recovered.getLastAddConfirmed() + " " + more.acknowledged);
        System.out.flush();
    }

    // Adds the next entry once one is acknowledged.
    private static class AddMore implements AsyncCallback.AddCallback {
        private final CountDownLatch fenced;
        volatile long acknowledged = 99;

        AddMore(CountDownLatch fenced) {
            this.fenced = fenced;
        }

        public void addComplete(int code, LedgerHandle ledger, long entry, Object context) {
            if (code != BKException.Code.OK) {
                fenced.countDown();
                return;
            }
            acknowledged = entry;
            ledger.asyncAddEntry(("entry " + (entry + 1)).getBytes(), this, null);
        }
    }

    // Ledgers whose handle is closed with adds under way, until some are refused for that: how many had each code.
    private static void closeEarly(BookKeeper client, DigestType digest, byte[] password, int count) throws Exception {
        Map<Integer, Integer> counts = new ConcurrentSkipListMap<>();
        while (counts.size() < 2) {
            counts.clear();
            CountDownLatch answered = new CountDownLatch(count - 1);
            LedgerHandle ledger = client.createLedger(3, 3, 2, digest, password);
            ledger.addEntry("entry 0".getBytes());
            counts.put(0, 1);
            for (int number = 1; number < count; number++) {
                ledger.asyncAddEntry(("entry " + number).getBytes(), (code, handle, entry, context) -> {
                    counts.merge(code, 1, Integer::sum);
                    answered.countDown();
                }, null);
            }
            ledger.close();
            answered.await();
            System.out.println("ledger " + ledger.getId());
            counts.forEach((code, number) -> System.out.println("code " + code + " " + number));
        }
    }

    private static void read(BookKeeper client, long id, DigestType digest, byte[] password) throws Exception {
        LedgerHandle ledger = client.openLedger(id, digest, password);
        System.out.println("last " + ledger.getLastAddConfirmed());
        Enumeration<LedgerEntry> entries = ledger.readEntries(0, ledger.getLastAddConfirmed());
        while (entries.hasMoreElements()) {
            System.out.println("read " + new String(entries.nextElement().getEntry()));
        }
    }
}
