package interop;

import java.util.LinkedHashMap;
import java.util.Map;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.FutureTask;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;

/** Runs every scenario, or those whose names contain the third argument; exit code 1 if one fails. */
public final class Main {
    private static final int SCENARIO_SECONDS_MAX = 60;

    /** One behaviour of a server, shown through the official client. */
    interface Scenario {
        void run(Server server) throws Exception;
    }

    private Main() {}

    public static void main(String[] arguments) throws Exception {
        if (arguments.length < 2) {
            System.err.println("arguments: SERVICE_URL ADMIN_URL [PART_OF_A_NAME]");
            System.exit(2);
        }
        Map<String, Scenario> scenarios = new LinkedHashMap<>();
        Producing.list(scenarios);
        Consuming.list(scenarios);
        Acknowledging.list(scenarios);
        Reading.list(scenarios);
        Compaction.list(scenarios);
        Transactions.list(scenarios);
        TransactionsBeside.list(scenarios);
        TransactionsSeen.list(scenarios);
        Histories.list(scenarios);
        Topics.list(scenarios);
        Schemas.list(scenarios);
        Access.list(scenarios);
        Server server = new Server(arguments[0], arguments[1]);
        int failed = 0;
        for (var each : scenarios.entrySet()) {
            if (arguments.length > 2 && !each.getKey().contains(arguments[2])) {
                continue;
            }
            long start = System.nanoTime();
            String failure = run(each.getValue(), server);
            failed += failure == null ? 0 : 1;
            System.out.printf("%s %s %.1f s%s%n", failure == null ? "PASS" : "FAIL", each.getKey(),
                    (System.nanoTime() - start) / 1e9, failure == null ? "" : ": " + failure);
        }
        System.exit(failed == 0 ? 0 : 1);
    }

    /** What went wrong, or null. */
    private static String run(Scenario scenario, Server server) throws Exception {
        var task = new FutureTask<Void>(() -> {
            scenario.run(server);
            return null;
        });
        var thread = new Thread(task, "scenario");
        thread.setDaemon(true);
        thread.start();
        try {
            task.get(SCENARIO_SECONDS_MAX, TimeUnit.SECONDS);
            return null;
        } catch (TimeoutException late) {
            return "still running after " + SCENARIO_SECONDS_MAX + " s: " + String.join(" < ",
                    java.util.Arrays.stream(thread.getStackTrace()).limit(6).map(Object::toString).toList());
        } catch (ExecutionException error) {
            var place = java.util.Arrays.stream(error.getCause().getStackTrace())
                    .filter(frame -> frame.getClassName().startsWith("interop.") && !frame.getClassName().endsWith("Check"))
                    .findFirst().map(Object::toString).orElse("?");
            return error.getCause() + " at " + place;
        }
    }
}
