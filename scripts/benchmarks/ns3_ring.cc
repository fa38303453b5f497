// A ring all-reduce over TCP in ns-3: RANKS hosts round one router, BYTES each, STEPS times.
// A rank sends 2 (N-1) chunks of BYTES/N to the next, each segment of all but the first chunk as soon as one like it has come from
// the rank before it, as the replay does it. Prints, in simulated seconds, when each step ended at the last rank.
// Usage: ns3_ring RANKS BYTES STEPS RATE DELAY MTU SEGMENT
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "ns3/core-module.h"
#include "ns3/internet-module.h"
#include "ns3/network-module.h"
#include "ns3/point-to-point-module.h"

using namespace ns3;

namespace {

uint64_t chunk, turns, segment;
int steps, waiting;

struct Rank {
    Ptr<Socket> out;
    uint64_t sent = 0, received = 0;
    int step = 0;

    void Send() {
        const uint64_t total = chunk * turns, whole = total * (step + 1), before = total * step;
        uint64_t allowed = std::min(whole, before + chunk + (received - before) / segment * segment);
        if (received == whole) allowed = whole;
        while (sent < allowed) {
            const int taken = out->Send(Create<Packet>(std::min<uint64_t>(allowed - sent, out->GetTxAvailable())));
            if (taken <= 0) return;
            sent += taken;
        }
    }
};

std::vector<Rank> ranks;

void Next() {
    std::printf("%.9f\n", Simulator::Now().GetSeconds());
    if (ranks[0].step + 1 == steps) {
        Simulator::Stop();
        return;
    }
    waiting = ranks.size();
    for (auto& rank : ranks) {
        rank.step++;
        Simulator::ScheduleNow(&Rank::Send, &rank);
    }
}

void Received(size_t me, Ptr<Socket> socket) {
    Rank& rank = ranks[me];
    while (Ptr<Packet> packet = socket->Recv()) rank.received += packet->GetSize();
    rank.Send();
    if (rank.received == chunk * turns * (rank.step + 1) && !--waiting) Next();
}

}  // namespace

int main(int, char** arguments) {
    const int size = std::atoi(arguments[1]);
    chunk = std::strtoull(arguments[2], nullptr, 10) / size;
    turns = 2 * (size - 1);
    steps = std::atoi(arguments[3]);
    const uint64_t most = std::strtoull(arguments[7], nullptr, 10);
    segment = chunk / ((chunk + most - 1) / most);
    const int mtu = std::atoi(arguments[6]);
    Config::SetDefault("ns3::TcpSocket::SegmentSize", UintegerValue(mtu - 52));
    Config::SetDefault("ns3::TcpSocket::SndBufSize", UintegerValue(512 << 10));
    Config::SetDefault("ns3::TcpSocket::RcvBufSize", UintegerValue(512 << 10));
    Config::SetDefault("ns3::TcpSocket::InitialCwnd", UintegerValue(10));

    NodeContainer hosts(size), router(1);
    InternetStackHelper().Install(NodeContainer(hosts, router));
    PointToPointHelper cable;
    cable.SetDeviceAttribute("DataRate", StringValue(arguments[4]));
    cable.SetDeviceAttribute("Mtu", UintegerValue(mtu));
    cable.SetChannelAttribute("Delay", StringValue(arguments[5]));
    cable.SetQueue("ns3::DropTailQueue<Packet>", "MaxSize", StringValue("16MB"));
    std::vector<Ipv4Address> addresses;
    for (int index = 0; index < size; index++) {
        const auto devices = cable.Install(hosts.Get(index), router.Get(0));
        char network[32];
        std::snprintf(network, sizeof network, "10.%d.%d.0", index / 256, index % 256);
        addresses.push_back(Ipv4AddressHelper(network, "255.255.255.0").Assign(devices).GetAddress(0));
    }
    Ipv4GlobalRoutingHelper::PopulateRoutingTables();

    ranks.resize(size);
    waiting = size;
    for (int index = 0; index < size; index++) {
        const Ptr<Socket> in = Socket::CreateSocket(hosts.Get(index), TcpSocketFactory::GetTypeId());
        in->Bind(InetSocketAddress(Ipv4Address::GetAny(), 9));
        in->Listen();
        in->SetAcceptCallback(MakeNullCallback<bool, Ptr<Socket>, const Address&>(), [index](Ptr<Socket> peer, const Address&) {
            peer->SetRecvCallback([index](Ptr<Socket> socket) { Received(index, socket); });
        });
        const Ptr<Socket> out = Socket::CreateSocket(hosts.Get(index), TcpSocketFactory::GetTypeId());
        ranks[index].out = out;
        out->Bind();
        out->SetConnectCallback([index](Ptr<Socket>) { ranks[index].Send(); }, [](Ptr<Socket>) { std::abort(); });
        out->SetSendCallback([index](Ptr<Socket>, uint32_t) { ranks[index].Send(); });
        // Not at once: nodes are made ready by the first event.
        Simulator::Schedule(NanoSeconds(1), [out, to = InetSocketAddress(addresses[(index + 1) % size], 9)] { out->Connect(to); });
    }
    Simulator::Run();
    Simulator::Destroy();
}
