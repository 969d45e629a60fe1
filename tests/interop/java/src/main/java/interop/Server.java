package interop;

import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.util.UUID;
import org.apache.pulsar.client.api.PulsarClient;

/** The server under test: a client of it, its admin API, names that nobody else uses. */
final class Server implements AutoCloseable {
    final PulsarClient client;
    private final String adminUrl;
    private final HttpClient http = HttpClient.newHttpClient();

    Server(String serviceUrl, String adminUrl) throws Exception {
        this.client = PulsarClient.builder().serviceUrl(serviceUrl).build();
        this.adminUrl = adminUrl;
    }

    String topic() {
        return "persistent://public/default/java-" + UUID.randomUUID();
    }

    String partitioned(int partitions) throws Exception {
        String topic = topic();
        admin("PUT", topic, "/partitions", Integer.toString(partitions));
        return topic;
    }

    /** Calls the admin API on a topic; the answer's body. Fails on any status but success. */
    String admin(String method, String topic, String suffix, String body) throws Exception {
        String path = "/admin/v2/" + topic.replace("://", "/") + suffix;
        HttpRequest request = HttpRequest.newBuilder(URI.create(adminUrl + path))
                .header("Content-Type", "application/json")
                .method(method, HttpRequest.BodyPublishers.ofString(body))
                .build();
        HttpResponse<String> answer = http.send(request, HttpResponse.BodyHandlers.ofString());
        Check.that(answer.statusCode() < 300, method + " " + path + ": " + answer.statusCode() + " " + answer.body());
        return answer.body();
    }

    @Override
    public void close() throws Exception {
        client.close();
    }
}
